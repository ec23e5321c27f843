# The files of the repository, without what is installed, built or left by runs.
tar -C "$REPOSITORY" --exclude=./.git --exclude=./.venv --exclude=./build --exclude=./dist \
    --exclude=./runs --exclude='./.*_cache' --exclude=lightning_logs --exclude=__pycache__ \
    -cf - . | tar -xf -
