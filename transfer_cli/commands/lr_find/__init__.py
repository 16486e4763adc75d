"""`transfer lr-find`: the learning-rate range test and its picture."""
