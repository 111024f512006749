/* HeadRanks: a HeadDecoder over one device, or over several of this process, which divide the matrix by rows: each makes its part of the
 * logits, and the ids are those of one device. */
#pragma once

#include "infer/head_decoder.h"

typedef struct HeadRanks HeadRanks;

/* device: "auto", "cpu" or "cuda", the one of index `gpu`; or several of a kind, "cuda:0,1". threads: of each CPU, 0: all cores. What the
 * matrix and hidden states have in a device's memory is of the first. */
NODISCARD Status head_ranks_open(const HeadDecoderOptions *options, const char *device, int gpu, int threads, HeadRanks **out);
void             head_ranks_close(HeadRanks *ranks);

/* As of head_decoder.h. Once a device has failed, each later call fails. */
NODISCARD Status head_ranks_queue(HeadRanks *ranks, const void *hidden, DType dtype, bool on_device, int64_t rows);
NODISCARD Status head_ranks_result(HeadRanks *ranks, int32_t *ids, int64_t rows);

/* The first device, and its decoder: what it knows of batches is true of all. */
Device      *head_ranks_device(const HeadRanks *ranks);
HeadDecoder *head_ranks_decoder(const HeadRanks *ranks);
int          head_ranks_count(const HeadRanks *ranks);
int64_t      head_ranks_bytes(const HeadRanks *ranks); /* allocated on all devices */
