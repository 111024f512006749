/* HeadDecoder: ids of hidden states over a bare matrix, the last step of decoding without the model before it. Its plan is compiled as any
 * other (passes/head.c). Rows of a batch don't influence one another. */
#pragma once

#include "run/session.h"

typedef enum HeadStrategy { HEAD_GREEDY, HEAD_BY_TEMPERATURE, HEAD_BY_TOP_K, HEAD_BY_TOP_P } HeadStrategy;

/* Where the matrix (vocab x dim) comes from. */
typedef struct HeadMatrix {
    const void  *data;
    DType        dtype;      /* F32, BF16, F16, or I8, which is multiplied by `scale` */
    bool         by_columns; /* a column's numbers lie side by side; else a row's */
    bool         on_device;  /* in memory of the device */
    const float *scale;      /* (vocab) of the host; NULL unless dtype is I8 */
} HeadMatrix;

typedef struct HeadDecoderOptions {
    int64_t      vocab, dim;
    int64_t      rows;  /* most of a batch */
    DType        dtype; /* that the matrix is kept in: its own, or another one that it is rounded to; I8 gets a scale for each row */
    HeadMatrix   matrix;
    const float *bias; /* (vocab) of the host; NULL: none */
    HeadStrategy strategy;
    double       temperature; /* of all strategies but greedy; above 0 */
    int64_t      top_k;       /* of HEAD_BY_TOP_K */
    double       top_p;       /* of HEAD_BY_TOP_P */
    uint64_t     seed;        /* with a batch's number and a row's the key of a draw */
    int rank, world; /* of as many devices that have joined, which divide the matrix by rows (head_ranks.h); world 0: it is alone */
} HeadDecoderOptions;

/* Batches whose result wasn't asked for. */
enum { HEAD_IN_FLIGHT = 2, HEAD_MOST_ROWS = 4096 };

typedef struct HeadDecoder HeadDecoder;

/* The matrix and the bias are copied; the device outlives the decoder. ERR_INVALID, said exactly, for options and numbers that can't be. */
NODISCARD Status head_decoder_create(const HeadDecoderOptions *options, Device *device, HeadDecoder **out_decoder);
void             head_decoder_destroy(HeadDecoder *decoder);

/* Queues a batch: `rows` rows of dim numbers in F32, BF16 or F16, on the host, or in memory of the device, which stays as it is until the
 * result is there. At most HEAD_IN_FLIGHT wait for theirs. */
NODISCARD Status head_decoder_queue(HeadDecoder *decoder, const void *hidden, DType dtype, bool on_device, int64_t rows);
/* ERR_INVALID where head_decoder_queue would refuse it. */
NODISCARD Status head_decoder_check_batch(const HeadDecoder *decoder, const void *hidden, DType dtype, int64_t rows);
/* Awaits the oldest queued batch, and forgets its ids. */
NODISCARD Status head_decoder_skip(HeadDecoder *decoder);
/* Awaits the oldest queued batch, which has `rows` rows. ERR_INVALID where a row has no id, as its logits are no numbers; the others' are
 * there. */
NODISCARD Status head_decoder_result(HeadDecoder *decoder, int32_t *ids, int64_t rows);
int64_t          head_decoder_waiting(const HeadDecoder *decoder); /* rows of the oldest batch in flight; 0: none is */
int              head_decoder_in_flight(const HeadDecoder *decoder);
int64_t          head_decoder_batches(const HeadDecoder *decoder); /* queued so far */

const Session *head_decoder_session(const HeadDecoder *decoder);
