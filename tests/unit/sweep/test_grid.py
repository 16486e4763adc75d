import logging

from omegaconf import OmegaConf

from transfer_cli.sweep.grid import say_what_changes_the_data


def said_of(caplog, *configs):
    with caplog.at_level(logging.INFO):
        say_what_changes_the_data([OmegaConf.create(config) for config in configs])
    return caplog.messages


def test_a_sweep_that_leaves_the_data_alone_says_nothing(caplog):
    same = {"data": {"length": 64}, "tokenizer": None}

    assert said_of(caplog, {**same, "seed": 0}, {**same, "seed": 1}) == []


def test_what_has_the_data_prepared_again_is_said_with_how_often(caplog):
    configs = [
        {"data": {"length": length}, "tokenizer": {"size": size}}
        for length in (32, 64)
        for size in (600, 700, 800)
    ]

    assert said_of(caplog, *configs) == [
        "data.length, tokenizer.size change the data: it is prepared 6 times, once for all jobs "
        "that agree in this"
    ]
