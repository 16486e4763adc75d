"""Contracts that parts of your own can be tested with.

Call one from a test. It fails with a sentence that says which claim does not hold:

    def test_my_plan_keeps_the_contract():
        check_plan(MyPlan())

    def test_my_objective_keeps_the_contract():
        check_objective(MyObjective(), TaskInfo(tokenizer, labels), data.batch(np.arange(8)))
"""
