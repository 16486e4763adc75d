"""What is special to each kind of labelled data: how it is read, encoded, answered, shown."""
