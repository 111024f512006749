/* Numbers of documents for random draws: the caller's numbers, changed so that no two documents of a step have the same one. A draw's
 * random key is (document, position, element). Two documents with one number would get the same dropout masks and the same rounding. */
#pragma once

#include <stdint.h>

typedef struct DocumentNumber {
    int32_t number;
    int32_t times; /* how often it was requested; 0: a free slot */
} DocumentNumber;

/* A zeroed struct is empty. */
typedef struct DocumentNumbers {
    DocumentNumber *slots; /* (size) hash table; size is a power of two */
    int64_t         size, num;
} DocumentNumbers;

/* Empties it for the next step. */
void document_numbers_clear(DocumentNumbers *numbers);
void document_numbers_deinit(DocumentNumbers *numbers);
/* Returns `number` (from 0 on) if no document of the step has it yet. Else returns an unused number, which depends on the order of calls.
 */
int32_t document_numbers_take(DocumentNumbers *numbers, int32_t number);
