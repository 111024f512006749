/* Pages of a KV cache: who holds which. A whole page may be named by the tokens that it stands for and the page before it; a prompt that
 * begins with the same tokens then holds it too, and needn't compute it. A named page stays until another needs the room. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct Pages Pages;

/* `count` pages of so many tokens, numbered from 1. */
Pages *pages_create(int64_t count, int64_t page_len);
void   pages_destroy(Pages *pages); /* NULL is fine */

int64_t pages_free(const Pages *pages);         /* that nobody holds */
int32_t pages_take(Pages *pages);               /* one that nobody holds, whose name is forgotten; there must be one */
void    pages_hold(Pages *pages, int32_t page); /* once more */
void    pages_drop(Pages *pages, int32_t page); /* one that was taken or held */

/* What a page stands behind: page `page`, or, 0, it is the first one of a sequence. Sequences of several kinds share none. */
typedef struct PageBefore {
    int32_t page, kind; /* kind: at least 0 */
} PageBefore;

/* The page with these tokens there; 0: there is none. */
int32_t pages_find(const Pages *pages, PageBefore before, const int32_t *tokens);
/* A taken page holds these tokens from now on. Where another page has them already, that one keeps the name. */
void pages_name(Pages *pages, int32_t page, PageBefore before, const int32_t *tokens);
