/* See head_ranks.h. The first rank works on the caller's thread, each other one on a thread of its own, since ranks wait for one another
 * when a device is joined and when programs are made ready. */
#include "infer/head_ranks.h"

#include "base/c_locale.h"
#include "comm/comm.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 16, KIND_BYTES = 16, MESSAGE_BYTES = 1024 };

typedef struct Rank Rank;
typedef Status (*RankJob)(Rank *rank);

struct Rank {
    HeadRanks   *all;
    int          index;
    Comm        *comm; /* NULL: there is one rank */
    Device      *device;
    HeadDecoder *decoder;
    pthread_t    thread;
    bool         is_started;
    Status       status; /* of the last job */
    char         message[MESSAGE_BYTES];
};

struct HeadRanks {
    Rank rank[MOST_RANKS];
    int  count;
    /* What jobs read. */
    const HeadDecoderOptions *options;
    char                      kind[KIND_BYTES];
    int                       index[MOST_RANKS], threads;
    const void               *hidden;
    DType                     dtype;
    bool                      on_device;
    int64_t                   rows;
    /* The job that all ranks have; NULL: their threads end. */
    pthread_mutex_t lock;
    pthread_cond_t  begun, ended;
    RankJob         job;
    uint64_t        number;
    int             busy;
};

/* ---- all ranks ---- */

static void work(Rank *rank, RankJob job)
{
    rank->status = job(rank);
    if (rank->status == OK) return;
    snprintf(rank->message, sizeof rank->message, "%s", status_message());
    if (rank->comm) comm_abort(rank->comm, rank->status, rank->message);
}

static void *rank_main(void *argument)
{
    Rank      *rank = argument;
    HeadRanks *all = rank->all;
    uint64_t   number = 0;
    pthread_mutex_lock(&all->lock);
    for (;;) {
        while (all->number == number) pthread_cond_wait(&all->begun, &all->lock);
        number = all->number;
        RankJob job = all->job;
        if (!job) break;
        pthread_mutex_unlock(&all->lock);
        work(rank, job);
        pthread_mutex_lock(&all->lock);
        if (--all->busy == 0) pthread_cond_signal(&all->ended);
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

static void begin(HeadRanks *all, RankJob job)
{
    pthread_mutex_lock(&all->lock);
    all->job = job;
    all->busy = all->count - 1;
    all->number++;
    pthread_cond_broadcast(&all->begun);
    pthread_mutex_unlock(&all->lock);
}

/* Runs the job on each rank. The failure is of the rank that failed by itself. */
static Status run(HeadRanks *all, RankJob job)
{
    const Rank *failed = NULL;
    begin(all, job);
    work(&all->rank[0], job);
    pthread_mutex_lock(&all->lock);
    while (all->busy) pthread_cond_wait(&all->ended, &all->lock);
    pthread_mutex_unlock(&all->lock);
    for (int r = 0; r < all->count; r++) {
        const Rank *rank = &all->rank[r];
        if (rank->status != OK && (!failed || failed->status == ERR_RANK)) failed = rank;
    }
    if (!failed) return OK;
    if (failed->index == 0) FAIL(failed->status, "%s", failed->message);
    FAIL(failed->status, "%s %d: %s", all->kind, all->index[failed->index], failed->message);
}

/* ---- jobs ---- */

static Status open_rank(Rank *rank)
{
    const HeadRanks   *all = rank->all;
    HeadDecoderOptions options = *all->options;
    TRY(device_open(all->kind, all->index[rank->index], all->threads, &rank->device));
    if (rank->comm) {
        FAIL_IF(!rank->device->api->join, ERR_UNSUPPORTED, "device %s can't work together with others", all->kind);
        TRY(rank->device->api->join(rank->device, rank->comm));
        TRY(comm_barrier(rank->comm)); /* the first rank's device is there */
    }
    options.rank = rank->index, options.world = all->count;
    if (rank->index && options.matrix.on_device) TRY(all->rank[0].device->api->settle(all->rank[0].device));
    return head_decoder_create(&options, rank->device, &rank->decoder);
}

static Status queue_on(Rank *rank)
{
    const HeadRanks *all = rank->all;
    bool             is_full = head_decoder_in_flight(rank->decoder) == HEAD_IN_FLIGHT;
    if (rank->index && is_full) TRY(head_decoder_skip(rank->decoder)); /* nobody asks this rank for ids */
    return head_decoder_queue(rank->decoder, all->hidden, all->dtype, all->on_device, all->rows);
}

static Status close_rank(Rank *rank)
{
    head_decoder_destroy(rank->decoder);
    if (rank->device) rank->device->api->destroy(rank->device);
    comm_destroy(rank->comm);
    return OK;
}

/* ---- opening ---- */

static Status read_index(const char *device, const char **at, int *out)
{
    char *end;
    long  index = strtol(*at, &end, 10);
    FAIL_IF(!isdigit((unsigned char)**at) || index > 1023 || (*end && *end != ','), ERR_INVALID,
            "device \"%s\"; expected a kind and its numbers, as cuda:0,1", device);
    *out = (int)index;
    *at = *end ? end + 1 : end;
    FAIL_IF(*end && !**at, ERR_INVALID, "device \"%s\" ends with a comma; expected a number behind it", device);
    return OK;
}

/* "cuda", or "cuda:0,1". */
static Status read_device(HeadRanks *all, const char *device, int gpu)
{
    const char *colon = strchr(device, ':'), *at = colon ? colon + 1 : "";
    size_t      len = colon ? (size_t)(colon - device) : strlen(device);
    FAIL_IF(len >= KIND_BYTES, ERR_INVALID, "device \"%s\"; expected auto, cpu or cuda", device);
    memcpy(all->kind, device, len);
    all->count = 1, all->index[0] = gpu;
    if (!colon) return OK;
    FAIL_IF(strcmp(all->kind, "auto") == 0, ERR_INVALID, "device \"%s\"; numbers belong to cpu or cuda", device);
    all->count = 0;
    do {
        FAIL_IF(all->count == MOST_RANKS, ERR_INVALID, "device \"%s\" names more than %d", device, MOST_RANKS);
        TRY(read_index(device, &at, &all->index[all->count]));
        for (int r = 0; r < all->count; r++)
            FAIL_IF(all->index[r] == all->index[all->count], ERR_INVALID, "device \"%s\" names %s %d twice", device, all->kind,
                    all->index[r]);
        all->count++;
    } while (*at);
    return OK;
}

static Status start(HeadRanks *all)
{
    Comm *comms[MOST_RANKS] = {0};
    if (all->count > 1) TRY(comm_threads_create(all->count, NULL, comms));
    for (int r = 0; r < all->count; r++) all->rank[r] = (Rank){.all = all, .index = r, .comm = comms[r]};
    if (all->count > 1) device_prepare_ranks(true);
    for (int r = 1; r < all->count; r++) {
        Rank *rank = &all->rank[r];
        FAIL_IF(c_locale_thread(&rank->thread, rank_main, rank) != 0, ERR_IO, "cannot start a thread for %s %d", all->kind, all->index[r]);
        rank->is_started = true;
    }
    return run(all, open_rank);
}

Status head_ranks_open(const HeadDecoderOptions *options, const char *device, int gpu, int threads, HeadRanks **out)
{
    HeadRanks *all = calloc_or_end(1, sizeof *all);
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->begun, NULL);
    pthread_cond_init(&all->ended, NULL);
    all->options = options, all->threads = threads;
    Status status = read_device(all, device, gpu);
    if (status == OK) status = start(all);
    all->options = NULL;
    if (status == OK)
        *out = all;
    else
        head_ranks_close(all);
    return status;
}

void head_ranks_close(HeadRanks *all)
{
    if (!all) return;
    bool are_all = all->count > 0 && all->rank[0].all;
    for (int r = 1; r < all->count; r++) are_all = are_all && all->rank[r].is_started;
    if (are_all) {
        Status status = run(all, close_rank);
        (void)status; /* closing fails never */
    } else {
        for (int r = 0; r < all->count; r++) comm_destroy(all->rank[r].comm);
    }
    begin(all, NULL);
    for (int r = 1; r < all->count; r++)
        if (all->rank[r].is_started) pthread_join(all->rank[r].thread, NULL);
    pthread_cond_destroy(&all->begun);
    pthread_cond_destroy(&all->ended);
    pthread_mutex_destroy(&all->lock);
    free(all);
}

/* ---- batches ---- */

Status head_ranks_queue(HeadRanks *all, const void *hidden, DType dtype, bool on_device, int64_t rows)
{
    TRY(head_decoder_check_batch(all->rank[0].decoder, hidden, dtype, rows)); /* no rank begins what another refuses */
    for (int r = 1; r < all->count && on_device; r++)                         /* before the first waits for the others */
        TRY(all->rank[r].device->api->follow(all->rank[r].device, all->rank[0].device));
    all->hidden = hidden, all->dtype = dtype, all->on_device = on_device, all->rows = rows;
    return run(all, queue_on);
}

Status head_ranks_result(HeadRanks *all, int32_t *ids, int64_t rows)
{
    return head_decoder_result(all->rank[0].decoder, ids, rows);
}

Device *head_ranks_device(const HeadRanks *all)
{
    return all->rank[0].device;
}

HeadDecoder *head_ranks_decoder(const HeadRanks *all)
{
    return all->rank[0].decoder;
}

int head_ranks_count(const HeadRanks *all)
{
    return all->count;
}

int64_t head_ranks_bytes(const HeadRanks *all)
{
    int64_t bytes = 0;
    for (int r = 0; r < all->count; r++) bytes += session_allocated_bytes(head_decoder_session(all->rank[r].decoder));
    return bytes;
}
