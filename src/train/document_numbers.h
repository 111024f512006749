/* Numbers of documents for random draws: those that the caller gave, but no two documents of a step with the same one. Draws are counted by
 * (document, position, element), so that two documents of one number would have the same masks of dropout and the same rounding. */
#pragma once

#include <stdint.h>

typedef struct DocumentNumber {
    int32_t number;
    int32_t times; /* that it was asked for; 0: a free slot */
} DocumentNumber;

/* Zeroed: none is taken. */
typedef struct DocumentNumbers {
    DocumentNumber *slots; /* (size), a power of two */
    int64_t         size, num;
} DocumentNumbers;

/* None is taken any more. */
void document_numbers_clear(DocumentNumbers *numbers);
void document_numbers_deinit(DocumentNumbers *numbers);
/* `number` (from 0 on) where no document of the step has it yet, else another one that none has, which follows from the order of calls. */
int32_t document_numbers_take(DocumentNumbers *numbers, int32_t number);
