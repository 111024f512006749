/* Attention of one query a row, as in decoding; its bits are those of attention_forward's panels of many queries. */
#pragma once

#include "ops/attention/attention.h"

/* Whether attention_run_few serves: one query a row, and no bias (a->bias.type has no dims). */
bool   attention_by_few(const Attention *a);
size_t attention_few_workspace(const Attention *a, int num_workers);
void   attention_run_few(const Attention *a, ThreadPool *pool, void *workspace);
