/* See pages.h. A page's name is its tokens and the serial number of the page before it, or the kind of its sequence. A page gets a new
 * serial number whenever it is taken, so pages named after a forgotten page are never found again. Pages that nobody holds are in a list,
 * ordered by when they were dropped. */
#include "infer/pages.h"

#include "base/hash.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

typedef struct Page {
    int64_t  holders;
    uint64_t serial, before; /* before (named pages): the serial number of the page before; for a first page: its kind */
    bool     is_named;
    int32_t  older, newer; /* neighbours in the list of pages that nobody holds; 0: none */
    int32_t  same;         /* the next page in the same bucket; 0: none */
} Page;

struct Pages {
    int64_t  count, len, num_free, num_buckets;
    uint64_t serials;
    Page    *page;    /* (1 + count) */
    int32_t *tokens;  /* (1 + count, len) */
    int32_t *buckets; /* (num_buckets) first page of each; num_buckets is a power of two */
    int32_t  oldest, newest;
};

static void list_add(Pages *p, int32_t page)
{
    p->page[page].older = p->newest;
    p->page[page].newer = 0;
    *(p->newest ? &p->page[p->newest].newer : &p->oldest) = page;
    p->newest = page;
    p->num_free++;
}

static void list_remove(Pages *p, int32_t page)
{
    int32_t older = p->page[page].older, newer = p->page[page].newer;
    *(older ? &p->page[older].newer : &p->oldest) = newer;
    *(newer ? &p->page[newer].older : &p->newest) = older;
    p->num_free--;
}

Pages *pages_create(int64_t count, int64_t page_len)
{
    Pages *p = calloc_or_end(1, sizeof *p);
    p->count = count;
    p->len = page_len;
    p->serials = INT32_MAX; /* serial numbers are above INT32_MAX, kinds are not */
    for (p->num_buckets = 16; p->num_buckets < 2 * count;) p->num_buckets *= 2;
    p->page = calloc_or_end((size_t)count + 1, sizeof *p->page);
    p->tokens = calloc_or_end((size_t)((count + 1) * page_len), sizeof *p->tokens);
    p->buckets = calloc_or_end((size_t)p->num_buckets, sizeof *p->buckets);
    for (int32_t page = 1; page <= count; page++) list_add(p, page);
    return p;
}

void pages_destroy(Pages *p)
{
    if (!p) return;
    free(p->page);
    free(p->tokens);
    free(p->buckets);
    free(p);
}

int64_t pages_free(const Pages *p)
{
    return p->num_free;
}

static int32_t *bucket_of(const Pages *p, uint64_t before, const int32_t *tokens)
{
    return &p->buckets[hash_bytes(tokens, (size_t)p->len * sizeof *tokens, before) & (uint64_t)(p->num_buckets - 1)];
}

static void forget(Pages *p, int32_t page)
{
    Page *own = &p->page[page];
    if (!own->is_named) return;
    int32_t *at = bucket_of(p, own->before, p->tokens + page * p->len);
    while (*at != page) at = &p->page[*at].same;
    *at = own->same;
    own->is_named = false;
}

int32_t pages_take(Pages *p)
{
    int32_t page = p->oldest;
    CHECK(page);
    forget(p, page);
    p->page[page].serial = ++p->serials;
    pages_hold(p, page);
    return page;
}

void pages_hold(Pages *p, int32_t page)
{
    if (!p->page[page].holders++) list_remove(p, page);
}

void pages_drop(Pages *p, int32_t page)
{
    if (!--p->page[page].holders) list_add(p, page);
}

static uint64_t serial_of(const Pages *p, PageBefore before)
{
    return before.page ? p->page[before.page].serial : (uint64_t)before.kind;
}

int32_t pages_find(const Pages *p, PageBefore before, const int32_t *tokens)
{
    uint64_t serial = serial_of(p, before);
    int32_t  page = *bucket_of(p, serial, tokens);
    while (page && (p->page[page].before != serial || memcmp(p->tokens + page * p->len, tokens, (size_t)p->len * sizeof *tokens) != 0))
        page = p->page[page].same;
    return page;
}

void pages_name(Pages *p, int32_t page, PageBefore before, const int32_t *tokens)
{
    Page *own = &p->page[page];
    if (own->is_named || pages_find(p, before, tokens)) return;
    own->before = serial_of(p, before);
    int32_t *at = bucket_of(p, own->before, tokens);
    memcpy(p->tokens + page * p->len, tokens, (size_t)p->len * sizeof *tokens);
    own->same = *at;
    own->is_named = true;
    *at = page;
}
