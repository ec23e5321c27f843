# A copy of the repository, with its environment; the recipes train for a few steps.
if [ ! -e Makefile ]; then
    . "$REPOSITORY/tests/documentation/given/copy_repository.sh"
    ln -s "$(python -c 'import sys; print(sys.prefix)')" .venv
    cp tests/documentation/given/project/train.py .
    sed -i -E 's/max_steps: .*/max_steps: 20/; s/^( *)max_epochs: .*/\1max_epochs: 1\n\1limit_train_batches: 20\n\1limit_val_batches: 2/
        s/val_check_interval: .*/val_check_interval: 10/; s/every_n_epoch: .*/every_n_epoch: 1/
    ' recipes/*/simulated.yaml
fi
export PYTHONPATH=$PWD
