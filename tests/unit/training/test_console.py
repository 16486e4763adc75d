"""What a run says at its end."""

from transfer_cli.training.console import in_words


def test_a_table_of_what_became_of_each_label_is_put_into_words():
    said = in_words([[45, 5], [15, 135]], ["spam", "no\nspam"])

    assert said == (
        "of 100 such texts about 90 get the right label (85 to 93, by these 200); always saying "
        "'no spam' gets 75 right"
    )
