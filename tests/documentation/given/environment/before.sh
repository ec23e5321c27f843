# An environment of its own, which sees what this one has installed, in a copy of the repository.
if [ ! -e environment ]; then
    . "$REPOSITORY/tests/documentation/given/copy_repository.sh"
    installed=$(python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    python -m venv environment
    echo "$installed" >"$(environment/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/installed.pth"
fi
unset PYTHONPATH
export PATH="$PWD/environment/bin:$PATH"
# What builds the package is installed already, and the package is on no index.
export PIP_NO_BUILD_ISOLATION=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# As the page defines it: a function ends with its shell.
vendor_packages() {
    python3 -m pip list --format=freeze | grep -iE '^(torch(vision|audio)?|numpy|habana[a-z_-]*)=='
}
