/* HeadDecoder: chooses ids from hidden states by multiplying them with a head matrix: the last step of decoding, without the model before
 * it. Its plan is compiled like other plans (passes/head.c). The rows of a batch don't influence one another. */
#pragma once

#include "run/session.h"

typedef enum HeadStrategy { HEAD_GREEDY, HEAD_BY_TEMPERATURE, HEAD_BY_TOP_K, HEAD_BY_TOP_P } HeadStrategy;

/* The source of the matrix (vocab x dim). */
typedef struct HeadMatrix {
    const void  *data;
    DType        dtype;      /* F32, BF16, F16, or I8, whose rows are multiplied by `scale` */
    bool         by_columns; /* column-major; else row-major */
    bool         on_device;  /* data points to device memory */
    const float *scale;      /* (vocab) on the host, a scale per row; NULL unless dtype is I8 */
} HeadMatrix;

typedef struct HeadDecoderOptions {
    int64_t      vocab, dim;
    int64_t      rows;  /* most rows of a batch */
    DType        dtype; /* of the decoder's copy of the matrix: the source's dtype, or one to round to; I8: quantized, a scale per row */
    HeadMatrix   matrix;
    const float *bias; /* (vocab) on the host; NULL: none */
    HeadStrategy strategy;
    double       temperature; /* for all strategies but greedy; above 0 */
    int64_t      top_k;       /* for HEAD_BY_TOP_K */
    double       top_p;       /* for HEAD_BY_TOP_P */
    uint64_t     seed;        /* with the batch's number and the row: the random key of a draw */
    int          rank, world; /* rank of `world` devices that divide the matrix by rows (head_ranks.h); world 0: one device alone */
} HeadDecoderOptions;

/* HEAD_IN_FLIGHT: most queued batches whose result wasn't awaited. */
enum { HEAD_IN_FLIGHT = 2, HEAD_MOST_ROWS = 4096 };

typedef struct HeadDecoder HeadDecoder;

/* The matrix and the bias are copied. The device must outlive the decoder. ERR_INVALID says which option or value is wrong. */
NODISCARD Status head_decoder_create(const HeadDecoderOptions *options, Device *device, HeadDecoder **out_decoder);
void             head_decoder_destroy(HeadDecoder *decoder);

/* Queues a batch: `rows` rows of dim elements in F32, BF16 or F16, on the host or in device memory. Device memory must stay unchanged until
 * the result was awaited. At most HEAD_IN_FLIGHT batches may be in flight. */
NODISCARD Status head_decoder_queue(HeadDecoder *decoder, const void *hidden, DType dtype, bool on_device, int64_t rows);
/* ERR_INVALID if head_decoder_queue would refuse the batch. */
NODISCARD Status head_decoder_check_batch(const HeadDecoder *decoder, const void *hidden, DType dtype, int64_t rows);
/* Awaits the oldest queued batch and discards its ids. */
NODISCARD Status head_decoder_skip(HeadDecoder *decoder);
/* Awaits the oldest queued batch, which must have `rows` rows. ERR_INVALID: a row has no id (negative), because its logits contain NaN or
 * infinity; the ids of other rows are valid. */
NODISCARD Status head_decoder_result(HeadDecoder *decoder, int32_t *ids, int64_t rows);
int64_t          head_decoder_waiting(const HeadDecoder *decoder); /* rows of the oldest batch in flight; 0: none is in flight */
int              head_decoder_in_flight(const HeadDecoder *decoder);
int64_t          head_decoder_batches(const HeadDecoder *decoder); /* batches queued so far */

const Session *head_decoder_session(const HeadDecoder *decoder);
