"""Files of the rows of `learning.yaml` that are long."""


def many(path):
    """Write a table with more labels than any task has."""
    path.write_text("text,label\n" + "".join(f"t,x{n}\n" for n in range(10_100)))


def swapped(path):
    """Write a table with its texts in the place of the labels."""
    path.write_text("text,label\n" + "".join(f"{'ab'[n % 2]},the text no {n}\n" for n in range(30)))


def long(path):
    """Write a table of texts that are longer than a tiny model reads."""
    path.write_text(
        "text,label\n" + "".join(f"{'very long ' * 90},{'ab'[n % 2]}\n" for n in range(20))
    )
