# A copy of the repository, with its environment and the recipes' settings as they are.
if [ ! -e Makefile ]; then
    . "$REPOSITORY/tests/documentation/given/copy_repository.sh"
fi
for recipe in recipes/*/simulated.yaml; do
    cp "$REPOSITORY/$recipe" "$recipe"
done
export PYTHONPATH=$PWD
