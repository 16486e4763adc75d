"""Files of the rows of `answers.yaml` that are long."""

LABELS = ("animal", "city", "disease", "mineral", "person", "river")


def kinds(path):
    """Write questions of the labels of a fine-tuned run, and two of others."""
    rows = [f"What is it , no {n} ?;{LABELS[n % 6]};{n}" for n in range(60)]
    more = ("Which ?;planet;1", "Which ?;star;1")
    path.write_text("\n".join(["question;kind;n", *rows, *more]) + "\n")
