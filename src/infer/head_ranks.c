/* See head_ranks.h. Ranks wait for one another when devices are joined and when programs are prepared. */
#include "infer/head_ranks.h"

#include "setup/rank_threads.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 16, KIND_BYTES = 16 };

typedef struct Rank {
    Device      *device;
    HeadDecoder *decoder;
} Rank;

struct HeadRanks {
    RankTeam *team;
    Rank      rank[MOST_RANKS];
    int       count;
    /* Arguments of the jobs. */
    const HeadDecoderOptions *options;
    char                      kind[KIND_BYTES];
    int                       index[MOST_RANKS], threads;
    const void               *hidden;
    DType                     dtype;
    bool                      on_device;
    int64_t                   rows;
};

/* ---- all ranks ---- */

typedef Status (*Job)(HeadRanks *all, int rank, Comm *comm);

typedef struct Call {
    HeadRanks *all;
    Job        job;
} Call;

/* Does the job on this rank. On failure, releases the other ranks, which may wait for this one. */
static Status do_job(void *context, Comm *comm, RankPlace place)
{
    const Call *call = context;
    Status      status = call->job(call->all, place.rank, comm);
    if (status != OK) comm_abort(comm, status, status_message());
    return status;
}

/* Does the job on each rank. The error names the device, unless it is the first. */
static Status run(HeadRanks *all, Job job)
{
    int    failed = 0;
    Status status = rank_team_run(all->team, do_job, &(Call){all, job}, &failed);
    return failed ? status_prefix(status, "%s %d", all->kind, all->index[failed]) : status;
}

/* ---- jobs ---- */

static Status open_rank(HeadRanks *all, int rank, Comm *comm)
{
    Rank              *own = &all->rank[rank];
    HeadDecoderOptions options = *all->options;
    TRY(device_open(all->kind, all->index[rank], all->threads, &own->device));
    if (comm) {
        FAIL_IF(!own->device->api->join, ERR_UNSUPPORTED, "device %s can't work together with others", all->kind);
        TRY(own->device->api->join(own->device, comm));
        TRY(comm_barrier(comm)); /* from here on the first rank's device exists */
    }
    options.rank = rank, options.world = all->count;
    if (rank && options.matrix.on_device) TRY(all->rank[0].device->api->settle(all->rank[0].device));
    return head_decoder_create(&options, own->device, &own->decoder);
}

static Status queue_on(HeadRanks *all, int rank, Comm *comm)
{
    HeadDecoder *decoder = all->rank[rank].decoder;
    (void)comm;
    if (rank && head_decoder_in_flight(decoder) == HEAD_IN_FLIGHT) TRY(head_decoder_skip(decoder)); /* nobody asks this rank for its ids */
    return head_decoder_queue(decoder, all->hidden, all->dtype, all->on_device, all->rows);
}

static Status close_rank(HeadRanks *all, int rank, Comm *comm)
{
    Device *device = all->rank[rank].device;
    (void)comm;
    head_decoder_destroy(all->rank[rank].decoder);
    if (device) device->api->destroy(device);
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

/* Reads "cuda" or "cuda:0,1". */
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

Status head_ranks_open(const HeadDecoderOptions *options, const char *device, int gpu, int threads, HeadRanks **out)
{
    HeadRanks *all = calloc_or_end(1, sizeof *all);
    all->options = options, all->threads = threads;
    Status status = read_device(all, device, gpu);
    if (status == OK) status = rank_team_create(all->count, NULL, &all->team);
    if (status == OK) status = run(all, open_rank);
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
    Status status = all->team ? run(all, close_rank) : OK;
    (void)status; /* closing never fails */
    rank_team_destroy(all->team);
    free(all);
}

/* ---- batches ---- */

Status head_ranks_queue(HeadRanks *all, const void *hidden, DType dtype, bool on_device, int64_t rows)
{
    TRY(head_decoder_check_batch(all->rank[0].decoder, hidden, dtype, rows)); /* so no rank begins a batch that another would refuse */
    for (int r = 1; r < all->count && on_device; r++)                         /* now: later work of rank 0 may wait for these ranks */
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
