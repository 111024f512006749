/* HeadRanks: a HeadDecoder on one device, or on several devices of this process that divide the matrix by rows. Each computes its part of
 * the logits; the ids are the same as on one device. */
#pragma once

#include "infer/head_decoder.h"

typedef struct HeadRanks HeadRanks;

/* device: "auto", "cpu" or "cuda" (with index `gpu`), or several of one kind, as "cuda:0,1". threads: per CPU device; 0: all cores. If the
 * matrix or hidden states are in device memory, that memory is the first device's. */
NODISCARD Status head_ranks_open(const HeadDecoderOptions *options, const char *device, int gpu, int threads, HeadRanks **out);
void             head_ranks_close(HeadRanks *ranks);

/* As in head_decoder.h. Once a device has failed, each later call fails. */
NODISCARD Status head_ranks_queue(HeadRanks *ranks, const void *hidden, DType dtype, bool on_device, int64_t rows);
NODISCARD Status head_ranks_result(HeadRanks *ranks, int32_t *ids, int64_t rows);

/* The first device, and its decoder. The decoders of all ranks have the same counts of batches. */
Device      *head_ranks_device(const HeadRanks *ranks);
HeadDecoder *head_ranks_decoder(const HeadRanks *ranks);
int          head_ranks_count(const HeadRanks *ranks);
int64_t      head_ranks_bytes(const HeadRanks *ranks); /* bytes allocated on all devices */
