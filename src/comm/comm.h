/* Comm: one rank's end of a group of ranks, which all make the same calls in the same order. It carries control (decisions of rank 0,
 * failures) and collectives over host memory; a device's own collectives are set up through it (DeviceApi.join).
 *
 * One failure ends the whole group. A rank fails when it calls comm_abort, dies, leaves early, makes a call that doesn't match the others'
 * or makes no progress. Then each waiting and each later call of every rank fails with ERR_RANK and "rank R: why", R being the first rank
 * that failed.
 *
 * A rank's calls come from one thread at a time; comm_abort, comm_check and comm_beat may come from any thread. NULL stands for a group of
 * one rank, and is valid in every call below.
 *
 * Backends: threads of one process (comm_threads_create); processes that meet over TCP (comm_meet) or through MPI (comm_mpi_create). All
 * add up in the same order, so that results have the same bits. */
#pragma once

#include "base/dtype.h"

typedef struct Comm Comm;

typedef enum CommReduce { COMM_SUM, COMM_MAX, COMM_REDUCE_COUNT } CommReduce;

/* How long a rank may give no sign of progress. Signs are entering or leaving a call of this header, and comm_beat. 0: the default. */
typedef struct CommLimits {
    double progress; /* seconds without a sign until a warning names the rank on stderr; default 60. At least 5 times the longest time
                        between two signs in the rank's current phase */
    double grace;    /* seconds from that warning until the group ends; default 10 */
} CommLimits;

enum { COMM_MOST_RANKS = 1024 };

/* Ranks 0 to size-1 of this process: out[r] is for the thread of rank r. limits: NULL for the defaults. */
NODISCARD Status comm_threads_create(int size, const CommLimits *limits, Comm *out[]);

/* How a process meets the other processes of the run. */
typedef struct CommMeeting {
    const char *host; /* address of rank 0, which listens there; NULL: 127.0.0.1 */
    int         port;
    int         rank, world_size;
    const char *secret; /* the same on all ranks, at least 16 characters. It is never sent: both ends prove that they know it by HMAC-SHA256
                           over fresh random numbers. Later messages are neither encrypted nor authenticated */
    uint64_t agreed;    /* a hash of the program to run, which must be equal on all ranks */
    double   timeout;   /* seconds until all ranks must have connected; 0: 60 */
    int      listener;  /* rank 0: a listening socket, which comm_meet takes over; 0: none */
} CommMeeting;

/* Meets the other processes of the run, then communicates with them through rank 0. ERR_INVALID on every rank that has connected: at
 * once for a wrong secret, a port in use, different world_size or `agreed`, or two ranks of the same number; after the timeout for ranks
 * that are missing. A process that dies, or a broken link, ends the group within 10 s. */
NODISCARD Status comm_meet(const CommMeeting *meeting, const CommLimits *limits, Comm **out);
/* comm_meet for `count` ranks of this process: meeting->rank (in out[0]) and the ranks after it. On failure no rank has joined. */
NODISCARD Status comm_meet_several(const CommMeeting *meeting, const CommLimits *limits, int count, Comm *out[]);

/* Whether mpirun (of Open MPI, or of an MPI with the MPICH ABI) started this process. */
bool comm_mpi_started(void);
/* Creates the ranks of processes that mpirun started, ranks_here of them in this process, numbered in the order of processes. MPI is
 * loaded at run time and carries the address of rank 0 and a secret to all, which then meet over TCP. May be called once in a process.
 * host: IPv4 address of rank 0; NULL: 127.0.0.1 if all are on one host, else the first address that isn't a loopback. */
NODISCARD Status comm_mpi_create(const char *host, uint64_t agreed, const CommLimits *limits, int ranks_here, Comm *out[]);

/* Reads the secret from a file that only its owner may read, or from the environment (path NULL). The caller frees *out. */
#define COMM_SECRET_VARIABLE "SUROGATE_SECRET"
NODISCARD Status comm_secret_read(const char *path, char **out);

/* Leaves the group; NULL is fine. Call it after the last collective, or after a failure: ranks that still wait for this one fail. The
 * last rank of a process frees the state its ranks share. */
void comm_destroy(Comm *comm);

int comm_rank(const Comm *comm); /* 0 for NULL */
int comm_size(const Comm *comm); /* 1 for NULL */

/* ---- collectives: each returns when this rank's buffers may be read and written again ---- */

NODISCARD Status comm_barrier(Comm *comm);
/* recv: size * bytes, in the order of ranks. send may be this rank's part of recv. */
NODISCARD Status comm_all_gather(Comm *comm, const void *send, void *recv, size_t bytes);
/* Copies rank root's data into all others' data. */
NODISCARD Status comm_broadcast(Comm *comm, int root, void *data, size_t bytes);
/* Reduces size * count elements of every rank's send; recv gets the count elements of this rank's part, and may be that part of send.
 * Floats (F32, BF16, F16) are summed in fp32 in the order of ranks and rounded once; integers (I32, I64) exactly, modulo their range. A
 * maximum over numbers that include a NaN is NaN. Other dtypes: ERR_UNSUPPORTED. */
NODISCARD Status comm_reduce_scatter(Comm *comm, const void *send, void *recv, int64_t count, DType dtype, CommReduce reduce);
/* Reduces count elements in place, to the same result on all ranks. */
NODISCARD Status comm_all_reduce(Comm *comm, void *data, int64_t count, DType dtype, CommReduce reduce);

/* ---- failing together ---- */

/* Reports that this rank failed with `cause`, which ends the group. Only the first failure is kept. */
void comm_abort(Comm *comm, Status cause, const char *why);
/* OK, or ERR_RANK with the message of the failure that ended the group; never waits. */
NODISCARD Status comm_check(Comm *comm);
/* The status of the first rank that failed, which becomes the exit code of all; OK: none has failed. */
Status comm_cause(Comm *comm);
/* Gives a sign of progress from this rank, which is in `phase` (the first 31 bytes count). Call it when a phase begins, and when
 * something advances within it, such as a step of training. */
void comm_beat(Comm *comm, const char *phase);
/* Calls on_end(context) once when a failure has ended the group, from a thread of the group's own: to wake a thread that waits
 * elsewhere, as in a device's collective. Replaces this rank's previous on_end, and waits if that is running; NULL: none. If the group
 * has ended already, on_end is called too. */
void comm_on_end(Comm *comm, void (*on_end)(void *context), void *context);
/* Seconds that this rank has waited for other ranks in collectives so far. */
double comm_waited(Comm *comm);

/* ---- backends (comm.c hands every call on to one) ---- */

typedef enum CommKind { COMM_BARRIER, COMM_ALL_GATHER, COMM_BROADCAST, COMM_REDUCE_SCATTER, COMM_ALL_REDUCE, COMM_KIND_COUNT } CommKind;

/* A rank's call of a collective. Fields other than pointers must be equal on all ranks. */
typedef struct CommCall {
    CommKind    kind;
    int         root;
    DType       dtype; /* for reductions */
    CommReduce  reduce;
    int64_t     count; /* elements of a reduction, else bytes */
    const void *send;
    void       *recv; /* for broadcast and all_reduce both pointers are `data` */
} CommCall;

typedef struct CommApi {
    const char *name;
    Status (*call)(Comm *comm, const CommCall *call);
    void (*wake)(Comm *comm); /* called when the group has ended or on_end was replaced, with the lock of CommLife held */
    void (*destroy)(Comm *comm);
} CommApi;

struct Comm {
    const CommApi   *api;
    struct CommSide *side; /* state common to all backends (comm/pulse.h) */
    int              rank, size;
    bool             is_local;       /* all ranks are on one host, and met at a loopback address */
    bool             is_one_process; /* all ranks are threads of this process, so pointers of one are valid in all */
};
