"""`transfer init`: a project folder with copies of the configs."""
