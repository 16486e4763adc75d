"""What is in a trained model: one module for each analysis, and what they are given."""
