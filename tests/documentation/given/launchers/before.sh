# What starts ranks on servers: here all of them are this machine.
export PATH="$PWD/bin:$PATH"
for name in mpiexec srun; do
    ln -sf mpirun "bin/$name"
done
