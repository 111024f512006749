/* Attention of one query a row, as decoding has it: of the bits that attention_forward's panels of many queries have. */
#pragma once

#include "ops/attention/attention.h"

/* Whether these are: values have the keys' size, and there is no bias, whose type says so. */
bool   attention_by_few(const Attention *a);
size_t attention_few_workspace(const Attention *a, int num_workers);
void   attention_run_few(const Attention *a, ThreadPool *pool, void *workspace);
