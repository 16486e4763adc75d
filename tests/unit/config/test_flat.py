from transfer_cli.config.flat import flat


def test_nested_values_are_found_by_their_full_keys_and_lists_stay_whole():
    nested = {"seed": 0, "loop": {"batch": 8, "empty": {}}, "betas": [0.9, {"a": 1}], "none": None}

    assert list(flat(nested)) == [
        ("seed", 0), ("loop.batch", 8), ("betas", [0.9, {"a": 1}]), ("none", None),
    ]  # fmt: skip


def test_keys_can_begin_with_a_word_and_need_not_be_texts():
    assert list(flat({1: 2}, "stages.")) == [("stages.1", 2)]
