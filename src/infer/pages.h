/* Pages of a KV cache, and how many requests hold each. A full page can be named by its tokens and the page before it. A prompt that begins
 * with the same tokens then holds the page too instead of computing it again. A named page keeps its contents until it is taken for another
 * use. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct Pages Pages;

/* `count` pages of `page_len` tokens each, numbered from 1. */
Pages *pages_create(int64_t count, int64_t page_len);
void   pages_destroy(Pages *pages); /* NULL is fine */

int64_t pages_free(const Pages *pages);         /* number of pages that nobody holds */
int32_t pages_take(Pages *pages);               /* takes a page that nobody holds, and forgets its name; pages_free must be above 0 */
void    pages_hold(Pages *pages, int32_t page); /* one more holder */
void    pages_drop(Pages *pages, int32_t page); /* one holder fewer */

/* The place of a page in its sequence. page: the page before it; 0: it is the first page of a sequence of this kind. Sequences of different
 * kinds share no pages. */
typedef struct PageBefore {
    int32_t page, kind; /* kind: at least 0 */
} PageBefore;

/* The page with these tokens after `before`; 0: there is none. */
int32_t pages_find(const Pages *pages, PageBefore before, const int32_t *tokens);
/* Names a taken page by its tokens. If another page has this name already, that one keeps it. */
void pages_name(Pages *pages, int32_t page, PageBefore before, const int32_t *tokens);
