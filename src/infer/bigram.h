/* An interpolated bigram model of tokens: the simplest model that knows which token follows which, as a baseline for networks. Witten-Bell:
 * p(w|v) = (c(v,w) + n(v) p(w)) / (c(v) + n(v)), where c counts occurrences and n(v) the different tokens after v. p(w) is interpolated in
 * the same way with the uniform distribution. */
#pragma once

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct Bigram Bigram;
Bigram               *bigram_create(int32_t vocab_size);
void                  bigram_destroy(Bigram *bigram); /* NULL is fine */
/* Learns the pairs within one document. */
void bigram_add(Bigram *bigram, const int32_t *ids, size_t count);
void bigram_finish(Bigram *bigram); /* call after the last document */
/* Sum of -ln p of ids[1..count). */
double bigram_loss(const Bigram *bigram, const int32_t *ids, size_t count);
