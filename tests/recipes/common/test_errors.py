import pytest
from torch.utils.data import DataLoader, Dataset

from recipes.common.errors import UserError, line_of


class _BadRow(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        raise UserError("data.path=x.csv, row 3: there is no label. Add it.")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_a_row_lacks_is_a_line_from_a_worker_too(num_workers):
    with pytest.raises(UserError) as error:
        list(DataLoader(_BadRow(), num_workers=num_workers))
    assert line_of(error.value) == "data.path=x.csv, row 3: there is no label. Add it."
