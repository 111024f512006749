/* Sums and maxima over ranks, element by element, in the order of ranks. All backends reduce with these functions. */
#pragma once

#include "comm/comm.h"

bool reduce_serves(DType dtype);

/* An accumulator of `count` elements: float for float formats, else int64_t; at most REDUCE_BYTES an element. */
enum { REDUCE_BYTES = 8 };
int64_t reduce_bytes(DType dtype); /* bytes of an element in the accumulator */
void    reduce_first(void *sums, const void *src, int64_t count, DType dtype);
void    reduce_next(void *sums, const void *src, int64_t count, DType dtype, CommReduce reduce);
void    reduce_store(void *dst, const void *sums, int64_t count, DType dtype);

/* Bytes that one rank sends to a collective, and below, receives from it. */
size_t comm_send_bytes(const CommCall *call, int size);
size_t comm_recv_bytes(const CommCall *call, int size);
/* Elements [*out_begin, *out_end) of a rank's part of an all_reduce. Parts are multiples of 16 elements, the last may be short. */
void comm_part(int64_t count, int rank, int size, int64_t *out_begin, int64_t *out_end);
/* Describes a call, such as "all_reduce of 12 bf16, sum", for messages about ranks whose calls differ. */
void comm_call_text(const CommCall *call, char *out, size_t size);
bool comm_call_same(const CommCall *a, const CommCall *b);
/* Whether another rank makes the same call as rank 0; false: `why` describes both calls. */
bool comm_calls_match(const CommCall *first, const CommCall *other, char *why, size_t size);
