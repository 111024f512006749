/* Compiles src/comm/mpi.c as a build without MPI does, for test_no_mpi. */
#define USE_MPI 0
#include "../../src/comm/mpi.c"
