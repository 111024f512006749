/* A program built with USE_MPI=OFF, started as each kind of mpirun starts it. */
#include "comm/comm.h"

#include "test.h"

static void several_processes_are_refused(void)
{
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    Comm                    *comm = NULL;
    setenv("PMI_RANK", "0", 1);
    for (int i = 0; i < 2; i++) {
        unsetenv(sizes[!i]);
        setenv(sizes[i], "3", 1);
        EXPECT(comm_mpi_started());
        EXPECT_FAILS(comm_mpi_create(NULL, 0, NULL, 1, &comm), ERR_UNSUPPORTED,
                     "one of 3 processes that mpirun started, but this program was built without MPI (USE_MPI=OFF)");
        setenv(sizes[i], "1", 1);
        EXPECT(!comm_mpi_started());
    }
}

TEST_MAIN(TEST(several_processes_are_refused))
