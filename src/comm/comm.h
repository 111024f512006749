/* Comm: one rank's end of a group of ranks, which all make the same calls in the same order. It carries control (what rank 0 decides, who
 * failed) and the collectives of host memory; a device's own collectives are set up through it (DeviceApi.join).
 *
 * One failure ends all: once a rank called comm_abort, died, left early, made a call that doesn't match the others', or made no progress,
 * each waiting and each later call of every rank fails with ERR_RANK and "rank R: why", R being the first that failed.
 *
 * A rank's calls come from one thread at a time; comm_abort, comm_check and comm_beat may come from any. NULL stands for a group of one
 * rank: every call below then does what that asks for.
 *
 * Backends: threads of one process (comm_threads_create); processes that meet over TCP (comm_meet) or through MPI
 * (comm_mpi_create). All
 * add up in the same order, so that results are the same bits. */
#pragma once

#include "base/dtype.h"

typedef struct Comm Comm;

typedef enum CommReduce { COMM_SUM, COMM_MAX, COMM_REDUCE_COUNT } CommReduce;

/* How long a rank may do nothing that others can see: entering or leaving a call of this header, or comm_beat. 0 takes the default. */
typedef struct CommLimits {
    double progress; /* seconds, 60; and at least 5 times the longest that the rank's phase has taken between two such signs. Then it is
                        named on stderr */
    double grace;    /* seconds after that until it ends all, 10 */
} CommLimits;

enum { COMM_MOST_RANKS = 1024 };

/* Ranks 0 to size-1 of this process: out[r] is for the thread of rank r. limits: NULL for the defaults. */
NODISCARD Status comm_threads_create(int size, const CommLimits *limits, Comm *out[]);

/* Where and as whom a process meets the others. */
typedef struct CommMeeting {
    const char *host; /* of rank 0, which listens there; NULL: 127.0.0.1 */
    int         port;
    int         rank, world_size;
    const char *secret; /* the same for all, at least 16 characters. It is never sent: both ends prove that they know it by HMAC-SHA256
                           over fresh random numbers. What follows is neither encrypted nor authenticated */
    uint64_t agreed;    /* must be equal on all ranks: a hash of what they run */
    double   timeout;   /* seconds until all must have come; 0: 60 */
    int      listener;  /* rank 0: a socket that listens already, taken over; 0: none */
} CommMeeting;

/* Meets the other processes of the run, then speaks with them through rank 0. A wrong secret, a port in use, ranks that differ in
 * world_size or `agreed`, or two of the same number: ERR_INVALID on every rank that came, at once. Ranks that don't come: likewise, after
 * the timeout. A process that dies, or a link that breaks, ends all within 10 s. */
NODISCARD Status comm_meet(const CommMeeting *meeting, const CommLimits *limits, Comm **out);
/* The same of `count` ranks of this process: meeting->rank, which goes to out[0], and those after it. All or none. */
NODISCARD Status comm_meet_several(const CommMeeting *meeting, const CommLimits *limits, int count, Comm *out[]);

/* Whether mpirun (Open MPI's, or one of the MPICH ABI) started this process. */
bool comm_mpi_started(void);
/* The ranks of processes that mpirun started, ranks_here of them in this one, numbered in the order of processes: MPI, which is opened at
 * run time, tells all where rank 0 is and a secret, and they meet there. Once in a process. host: of rank 0, an IPv4 address; NULL:
 * 127.0.0.1 where all are on one host, else the first address that isn't. */
NODISCARD Status comm_mpi_create(const char *host, uint64_t agreed, const CommLimits *limits, int ranks_here, Comm *out[]);

/* The secret: of a file that its owner alone may read, or (path NULL) of the environment. The caller frees it. */
#define COMM_SECRET_VARIABLE "SUROGATE_SECRET"
NODISCARD Status comm_secret_read(const char *path, char **out);

/* Leaves the group; NULL is fine. Others that wait for this rank then, or later, fail: it comes after the last collective, or after a
 * failure. The last rank of a process frees what they share. */
void comm_destroy(Comm *comm);

int comm_rank(const Comm *comm); /* 0 for NULL */
int comm_size(const Comm *comm); /* 1 for NULL */

/* ---- collectives: each returns when this rank's buffers may be read and written again ---- */

NODISCARD Status comm_barrier(Comm *comm);
/* recv: size * bytes, in the order of ranks. send may be this rank's place in recv. */
NODISCARD Status comm_all_gather(Comm *comm, const void *send, void *recv, size_t bytes);
/* Rank root's data to all others' data. */
NODISCARD Status comm_broadcast(Comm *comm, int root, void *data, size_t bytes);
/* send: size * count elements; recv: count, those of this rank's place, of all ranks. recv may be this rank's place in send. Floats
 * (F32, BF16, F16) are summed in fp32 in the order of ranks and rounded once, whole numbers (I32, I64) exactly, modulo their range. The
 * maximum of numbers of which one is NaN is NaN. Other dtypes: ERR_UNSUPPORTED. */
NODISCARD Status comm_reduce_scatter(Comm *comm, const void *send, void *recv, int64_t count, DType dtype, CommReduce reduce);
/* The same sums of count elements, in place, for all ranks. */
NODISCARD Status comm_all_reduce(Comm *comm, void *data, int64_t count, DType dtype, CommReduce reduce);

/* ---- failing together ---- */

/* This rank failed with `cause`: ends all. The first failure is kept, later ones change nothing. */
void comm_abort(Comm *comm, Status cause, const char *why);
/* OK, or ERR_RANK with the message of the failure that ended all; never waits. */
NODISCARD Status comm_check(Comm *comm);
/* The status that the first failed rank failed with, for the exit code of all; OK while none has. */
Status comm_cause(Comm *comm);
/* This rank is alive and now does what `phase` names (at most 31 bytes of it count): a phase's first beat, and one wherever something
 * moved within it, as a step of training. */
void comm_beat(Comm *comm, const char *phase);
/* Calls on_end(context) once, from a thread of the group's own, when a failure has ended all: to wake who waits elsewhere, as in a
 * device's collective. Replaces this rank's previous one; NULL: none. Doesn't return while the previous one runs; where all has ended
 * already, on_end is called all the same. */
void comm_on_end(Comm *comm, void (*on_end)(void *context), void *context);
/* Seconds that this rank has waited for others in collectives so far. */
double comm_waited(Comm *comm);

/* ---- backends (comm.c hands every call on to one) ---- */

typedef enum CommKind { COMM_BARRIER, COMM_ALL_GATHER, COMM_BROADCAST, COMM_REDUCE_SCATTER, COMM_ALL_REDUCE, COMM_KIND_COUNT } CommKind;

/* A collective as a rank asks for it. What isn't a pointer must be equal on all ranks. */
typedef struct CommCall {
    CommKind    kind;
    int         root;
    DType       dtype; /* of reductions */
    CommReduce  reduce;
    int64_t     count; /* elements of a reduction, else bytes */
    const void *send;
    void       *recv; /* broadcast, all_reduce: both are `data` */
} CommCall;

typedef struct CommApi {
    const char *name;
    Status (*call)(Comm *comm, const CommCall *call);
    void (*wake)(Comm *comm); /* all has ended, or there is another on_end; with the lock of its life */
    void (*destroy)(Comm *comm);
} CommApi;

struct Comm {
    const CommApi   *api;
    struct CommSide *side; /* what all backends keep of it (comm/pulse.h) */
    int              rank, size;
    bool             is_local;       /* all ranks are on one host, and meet there alone */
    bool             is_one_process; /* all ranks are threads of this process: what one points to is there for all */
};
