/* src/comm/mpi.c of a build without MPI, for test_no_mpi. */
#define USE_MPI 0
#include "../../src/comm/mpi.c"
