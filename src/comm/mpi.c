/* Processes that mpirun started. MPI is loaded at run time, tells the number of processes, and carries rank 0's address and a secret to
 * all. Then the processes meet over TCP like any others, and MPI is finalized. So a dead process ends the group in the same way whatever
 * MPI is used.
 *
 * MPIs have the same functions, but different values of handles. Two kinds are supported: Open MPI, where MPI_COMM_WORLD is the address of
 * an object in the library, and the MPICH ABI (MPICH, Intel MPI, MVAPICH), where it is an integer. Environment variables that mpirun sets
 * tell which one is used.
 *
 * Built with USE_MPI=OFF, MPI isn't loaded: each of several processes that mpirun started says so and fails. */
#include "comm/comm.h"

#include <stdlib.h>

/* Number of processes that mpirun started, from its environment variables; 0: mpirun didn't start this process. */
static int count_started(bool *out_is_open_mpi)
{
    const char *open_mpi = getenv("OMPI_COMM_WORLD_SIZE"), *mpich = getenv("PMI_RANK") ? getenv("PMI_SIZE") : NULL;
    *out_is_open_mpi = open_mpi != NULL;
    return open_mpi ? atoi(open_mpi) : mpich ? atoi(mpich) : 0;
}

#if USE_MPI

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FUNNELED = 1, SECRET_BYTES = 32 };
#define MPICH_WORLD ((void *)0x44000000)
#define MPICH_BYTE ((void *)0x4c00010d)

/* Handles are stored as pointers. A library whose handles are int reads only the lower half of the register (System V, x86-64). */
typedef struct Mpi {
    void *world, *byte;
    int (*initialized)(int *flag);
    int (*init_thread)(int *argc, char ***argv, int required, int *provided);
    int (*finalize)(void);
    int (*rank)(void *world, int *out);
    int (*size)(void *world, int *out);
    int (*allgather)(const void *send, int count, void *type, void *recv, int each, void *recv_type, void *world);
} Mpi;

/* The data that each process sends to all others. */
typedef struct Card {
    char    host[256], address[64], secret[2 * SECRET_BYTES + 1];
    int32_t ranks, port;
    char    fault[256]; /* rank 0 only: why it can't listen; "": it listens */
} Card;

bool comm_mpi_started(void)
{
    bool is_open_mpi;
    return count_started(&is_open_mpi) > 0;
}

static Status open_mpi(Mpi *mpi)
{
    bool is_open_mpi;
    (void)count_started(&is_open_mpi);
    const char *file = is_open_mpi ? "libmpi.so.40" : "libmpi.so.12";
    const struct {
        const char *name;
        void       *to;
    } functions[] = {{"MPI_Initialized", &mpi->initialized}, {"MPI_Init_thread", &mpi->init_thread}, {"MPI_Finalize", &mpi->finalize},
                     {"MPI_Comm_rank", &mpi->rank},          {"MPI_Comm_size", &mpi->size},          {"MPI_Allgather", &mpi->allgather}};
    void *library = dlopen(file, RTLD_NOW | RTLD_GLOBAL); /* RTLD_GLOBAL, as MPI's plugins look for its symbols */
    FAIL_IF(!library, ERR_UNSUPPORTED, "this process was started by mpirun, but %s, its library, can't be opened: %s", file, dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *symbol = dlsym(library, functions[i].name);
        FAIL_IF(!symbol, ERR_UNSUPPORTED, "%s lacks %s", file, functions[i].name);
        memcpy(functions[i].to, &symbol, sizeof symbol);
    }
    mpi->world = is_open_mpi ? dlsym(library, "ompi_mpi_comm_world") : MPICH_WORLD;
    mpi->byte = is_open_mpi ? dlsym(library, "ompi_mpi_byte") : MPICH_BYTE;
    FAIL_IF(!mpi->world || !mpi->byte, ERR_UNSUPPORTED, "%s isn't Open MPI, though its mpirun started this process", file);
    return OK;
}

/* The first IPv4 address of this host that isn't a loopback, else 127.0.0.1. */
static void find_own_address(char *out, size_t size)
{
    struct ifaddrs *all = NULL;
    snprintf(out, size, "127.0.0.1");
    if (getifaddrs(&all) != 0) return;
    for (const struct ifaddrs *a = all; a; a = a->ifa_next) {
        if (!a->ifa_addr || a->ifa_addr->sa_family != AF_INET || (a->ifa_flags & IFF_LOOPBACK) || !(a->ifa_flags & IFF_UP)) continue;
        inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)a->ifa_addr)->sin_addr, out, (socklen_t)size);
        break;
    }
    freeifaddrs(all);
}

/* Rank 0 listens at a free port of card->address. -1: failed; card->fault says why, for all ranks. */
static int listen_anywhere(Card *card)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t          size = sizeof at;
    int                fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool               ok = fd >= 0 && inet_pton(AF_INET, card->address, &at.sin_addr) == 1;
    if (ok && bind(fd, (struct sockaddr *)&at, size) == 0 && listen(fd, 1024) == 0 && getsockname(fd, (struct sockaddr *)&at, &size) == 0) {
        card->port = ntohs(at.sin_port);
        return fd;
    }
    snprintf(card->fault, sizeof card->fault, "cannot listen at %s: %s", card->address, ok ? strerror(errno) : "it isn't an IPv4 address");
    if (fd >= 0) close(fd);
    return -1;
}

static void draw_secret(Card *card)
{
    uint8_t bytes[SECRET_BYTES];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
        snprintf(card->fault, sizeof card->fault, "the system gives no random numbers: %s", strerror(errno));
        return;
    }
    for (int i = 0; i < SECRET_BYTES; i++) snprintf(card->secret + 2 * i, 3, "%02x", bytes[i]);
}

static Status gather_cards(const Mpi *mpi, const Card *own, Card *all)
{
    int error = mpi->allgather(own, sizeof *own, mpi->byte, all, sizeof *own, mpi->byte, mpi->world);
    FAIL_IF(error, ERR_RANK, "MPI_Allgather failed with error %d", error);
    return OK;
}

/* Gathers all cards twice: first for the hosts' names, then for the address, port and secret that rank 0 has set up. */
static Status exchange(const Mpi *mpi, const char *host, int process, int processes, int ranks_here, Card *all, int *out_listener)
{
    Card own = {.ranks = ranks_here};
    bool one_host = true;
    gethostname(own.host, sizeof own.host - 1);
    TRY(gather_cards(mpi, &own, all));
    for (int p = 1; p < processes; p++) one_host = one_host && strncmp(all[p].host, all[0].host, sizeof own.host) == 0;
    if (process == 0) {
        if (host)
            snprintf(own.address, sizeof own.address, "%s", host);
        else if (one_host)
            snprintf(own.address, sizeof own.address, "127.0.0.1");
        else
            find_own_address(own.address, sizeof own.address);
        *out_listener = listen_anywhere(&own);
        draw_secret(&own);
    }
    Status status = gather_cards(mpi, &own, all);
    explicit_bzero(own.secret, sizeof own.secret);
    TRY(status);
    FAIL_IF(all[0].fault[0], ERR_INVALID, "rank 0: %.255s", all[0].fault);
    return OK;
}

static Status meet_through(const Mpi *mpi, const char *host, uint64_t agreed, const CommLimits *limits, int ranks_here, Comm *out[])
{
    int process, processes, listener = -1;
    FAIL_IF(mpi->rank(mpi->world, &process) || mpi->size(mpi->world, &processes), ERR_RANK, "MPI doesn't say who is there");
    Card       *all = calloc_or_end((size_t)processes, sizeof *all);
    CommMeeting meeting = {.agreed = agreed};
    Status      status = exchange(mpi, host, process, processes, ranks_here, all, &listener);
    mpi->finalize();
    for (int p = 0; p < processes; p++) {
        if (p < process) meeting.rank += all[p].ranks;
        meeting.world_size += all[p].ranks;
    }
    meeting.host = all[0].address;
    meeting.port = all[0].port;
    meeting.secret = all[0].secret;
    meeting.listener = process == 0 ? listener : 0;
    if (status != OK && listener >= 0) close(listener);
    if (status == OK) status = comm_meet_several(&meeting, limits, ranks_here, out);
    explicit_bzero(all, (size_t)processes * sizeof *all);
    free(all);
    return status;
}

Status comm_mpi_create(const char *host, uint64_t agreed, const CommLimits *limits, int ranks_here, Comm *out[])
{
    Mpi mpi = {0};
    int before = 0, provided;
    FAIL_IF(!comm_mpi_started(), ERR_INVALID, "this process wasn't started by mpirun of Open MPI or of MPICH");
    TRY(open_mpi(&mpi));
    FAIL_IF(mpi.initialized(&before) || before, ERR_INVALID, "MPI is used once in a process, and it was");
    int error = mpi.init_thread(NULL, NULL, FUNNELED, &provided);
    FAIL_IF(error, ERR_RANK, "MPI_Init_thread failed with error %d", error);
    return meet_through(&mpi, host, agreed, limits, ranks_here, out);
}

#else

bool comm_mpi_started(void)
{
    bool is_open_mpi;
    return count_started(&is_open_mpi) > 1; /* a single process has nobody to meet */
}

Status comm_mpi_create(const char *host, uint64_t agreed, const CommLimits *limits, int ranks_here, Comm *out[])
{
    bool is_open_mpi;
    (void)host, (void)agreed, (void)limits, (void)ranks_here, (void)out;
    FAIL(ERR_UNSUPPORTED,
         "this is one of %d processes that mpirun started, but this program was built without MPI (USE_MPI=OFF): build it with USE_MPI=ON, "
         "start one process with gpus: N, or give each world_size, rank and rendezvous",
         count_started(&is_open_mpi));
}

#endif
