import pytest

from recipes.common.errors import UserError
from recipes.text_to_image.requests import make_requests, requests_for_digits


def test_pictures_are_in_the_order_of_the_prompts_and_seeds_count_up():
    made = make_requests(["a", "b"], ["not"], 2, [7])
    assert [(each.index, each.prompt, each.seed) for each in made] == [
        *((0, "a", 7), (1, "a", 8)),
        *((2, "b", 9), (3, "b", 10)),
    ]
    assert {each.negative_prompt for each in made} == {"not"}


def test_negative_prompts_and_seeds_may_be_one_each():
    made = make_requests(["a", "b"], ["x", "y"], 1, [3, 3])
    assert [(each.negative_prompt, each.seed) for each in made] == [("x", 3), ("y", 3)]
    assert {each.negative_prompt for each in make_requests(["a"], (), 2, [0])} == {None}


@pytest.mark.parametrize(
    ("negatives", "number", "seeds", "said"),
    [
        (["x", "y", "z"], 1, [0], "data.negative_prompts has 3 prompts, and data.prompts has 2"),
        ((), 2, [1, 2, 3], r"data.seeds has 3 seeds for 4 pictures \(2 prompts x 2\)"),
        ((), 1, [], "data.seeds has 0 seeds for 2 pictures"),
        ((), 1, [-1], r"data\.seeds has -1\. Give seeds from 0"),
        ((), 0, [0], "data.num_images_per_prompt=0 must be at least 1"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(negatives, number, seeds, said):
    with pytest.raises(UserError, match=said):
        make_requests(["a", "b"], negatives, number, seeds)


def test_each_pair_is_painted_as_often_as_asked_to_judge():
    assert len(requests_for_digits(3, 10)) == 180
