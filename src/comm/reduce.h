/* Sums and maxima over ranks, element by element, one rank after another: the one definition of what a reduction gives. */
#pragma once

#include "comm/comm.h"

bool reduce_serves(DType dtype);

/* An accumulator of `count` elements: floats for the float formats, else int64_t; at most REDUCE_BYTES each. */
enum { REDUCE_BYTES = 8 };
int64_t reduce_bytes(DType dtype); /* bytes of one in an accumulator */
void    reduce_first(void *sums, const void *src, int64_t count, DType dtype);
void    reduce_next(void *sums, const void *src, int64_t count, DType dtype, CommReduce reduce);
void    reduce_store(void *dst, const void *sums, int64_t count, DType dtype);

/* Bytes of what one rank gives to, and of what it has from, a collective. */
size_t comm_send_bytes(const CommCall *call, int size);
size_t comm_recv_bytes(const CommCall *call, int size);
/* Elements (bytes, where nothing is reduced) of each rank's part of an all_reduce: parts are of whole runs of 16. */
void comm_part(int64_t count, int rank, int size, int64_t *out_begin, int64_t *out_end);
/* "all_reduce of 12 bf16, sum", for messages about ranks that don't do the same. */
void comm_call_text(const CommCall *call, char *out, size_t size);
bool comm_call_same(const CommCall *a, const CommCall *b);
/* Whether another rank calls the same as rank 0; if not, `why` says what both call. */
bool comm_calls_match(const CommCall *first, const CommCall *other, char *why, size_t size);
