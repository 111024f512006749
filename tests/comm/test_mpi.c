/* Ranks of processes that mpirun starts; skipped without mpirun. The test starts itself with an argument that says what each process
 * does. */
#include "comm/comm.h"
#include "test.h"

#include <pthread.h>
#include <unistd.h>

enum { HERE = 2, PROCESSES = 2 };

static bool leaves; /* the last process exits without telling the others */

static void *be_rank(void *argument)
{
    Comm   *comm = argument;
    int64_t sum = 1ll << (8 * comm_rank(comm));
    Status  status = comm_all_reduce(comm, &sum, 1, DT_I64, COMM_SUM);
    if (leaves && status == OK) {
        if (comm_rank(comm) == comm_size(comm) - 1) _exit(0);
        while (status == OK) status = comm_barrier(comm);
    }
    char line[512];
    int  n = status == OK ? snprintf(line, sizeof line, "rank %d of %d: %llx\n", comm_rank(comm), comm_size(comm), (long long)sum)
                          : snprintf(line, sizeof line, "rank %d sees %s\n", comm_rank(comm), status_message());
    if (write(1, line, (size_t)n) < 0) return NULL;
    comm_destroy(comm);
    return NULL;
}

static int be_process(void)
{
    Comm     *comm[HERE];
    pthread_t thread[HERE];
    if (comm_mpi_create(NULL, 5, NULL, HERE, comm) != OK) return fprintf(stderr, "%s\n", status_message()), 1;
    for (int i = 0; i < HERE; i++)
        if (pthread_create(&thread[i], NULL, be_rank, comm[i]) != 0) return 1;
    for (int i = 0; i < HERE; i++) pthread_join(thread[i], NULL);
    if (comm_mpi_create(NULL, 5, NULL, HERE, comm) == OK || !strstr(status_message(), "once in a process")) return 1;
    return 0;
}

/* MPI itself leaks memory, so leak detection is off. */
static bool run_processes(const char *what, char *out, size_t size)
{
    char    self[2048], command[4096];
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    self[len > 0 ? len : 0] = 0;
    snprintf(command, sizeof command,
             "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
             "ASAN_OPTIONS=detect_leaks=0 timeout 60 mpirun -n %d '%s' %s 2>&1",
             PROCESSES, self, what);
    FILE  *pipe = popen(command, "r");
    size_t n = pipe ? fread(out, 1, size - 1, pipe) : 0;
    out[n] = 0;
    return pipe && pclose(pipe) == 0;
}

static bool have_mpirun(void)
{
    return system("command -v mpirun > /dev/null 2>&1") == 0;
}

static void processes_of_mpirun_are_ranks(void)
{
    char out[16384];
    if (!have_mpirun()) SKIP("there is no mpirun");
    if (!run_processes("--process", out, sizeof out)) test_fail(__FILE__, __LINE__, "mpirun failed: %s", out);
    for (int r = 0; r < HERE * PROCESSES; r++) {
        char line[64];
        snprintf(line, sizeof line, "rank %d of %d: 1010101\n", r, HERE * PROCESSES);
        EXPECT_CONTAINS(out, line);
    }
}

static void a_process_of_mpirun_that_ends_is_named(void)
{
    char out[16384];
    if (!have_mpirun()) SKIP("there is no mpirun");
    run_processes("--leaves", out, sizeof out);
    EXPECT_CONTAINS(out, "rank 0 sees rank ");
    EXPECT_CONTAINS(out, "its process has ended");
}

static void without_mpirun_it_is_said(void)
{
    Comm *comm[1];
    EXPECT(!comm_mpi_started());
    EXPECT_FAILS(comm_mpi_create(NULL, 0, NULL, 1, comm), ERR_INVALID, "wasn't started by mpirun");
    setenv("PMI_SIZE", "2", 1);
    setenv("PMI_RANK", "0", 1);
    EXPECT(comm_mpi_started());
    if (access("/usr/lib/x86_64-linux-gnu/libmpi.so.12", F_OK) != 0)
        EXPECT_FAILS(comm_mpi_create(NULL, 0, NULL, 1, comm), ERR_UNSUPPORTED, "libmpi.so.12");
    unsetenv("PMI_SIZE");
    unsetenv("PMI_RANK");
}

int main(int argc, char **argv)
{
    static const TestCase cases[] = {TEST(processes_of_mpirun_are_ranks), TEST(a_process_of_mpirun_that_ends_is_named),
                                     TEST(without_mpirun_it_is_said)};
    leaves = argc > 1 && strcmp(argv[1], "--leaves") == 0;
    if (leaves || (argc > 1 && strcmp(argv[1], "--process") == 0)) return be_process();
    return test_run(cases, 3, argc, argv);
}
