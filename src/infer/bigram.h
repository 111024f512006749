/* An interpolated token-bigram model: the simplest model of text that knows which token follows which, to hold a network
 * against. Witten-Bell: p(w|v) = (c(v,w) + n(v) p(w)) / (c(v) + n(v)), n(v) the number of different tokens after v, and
 * the same one order down for p(w), over the uniform distribution. */
#pragma once

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct Bigram Bigram;
Bigram               *bigram_create(int32_t vocab_size);
void                  bigram_destroy(Bigram *bigram); /* NULL is fine */
/* Learns from one document: pairs within it. */
void bigram_add(Bigram *bigram, const int32_t *ids, size_t count);
void bigram_finish(Bigram *bigram); /* after the last document */
/* -ln p of ids[1..count), summed. */
double bigram_loss(const Bigram *bigram, const int32_t *ids, size_t count);
