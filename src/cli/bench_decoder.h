/* surogate bench decoder: how fast ids are chosen over a bare matrix. */
#pragma once

#include "cli/cli.h"

typedef struct DecoderBench {
    int64_t     vocab, dim, batch, batches, threads;
    const char *dtype, *hidden, *strategy, *device;
} DecoderBench;

/* What the flags stand at where they aren't given. */
DecoderBench bench_decoder_defaults(void);

NODISCARD Status bench_decoder(const DecoderBench *bench, bool json);
