#include "data/feeds.h"

enum { OWN_COLUMN = INT32_MIN };

#define CELLS FEED_CELLS, 0
#define ROWS FEED_ROWS, 0
#define TABLE FEED_TABLE, 0
#define NUMBERS(n) FEED_NUMBERS, n
static const FeedInfo infos[FEED_COUNT] = {
#define FEED(id, name, ctype, dtype, shape, pad) {#name, dtype, shape},
#include "data/feeds.def"
#undef FEED
};

static const int32_t paddings[FEED_COUNT] = {
#define FEED(id, name, ctype, dtype, shape, pad) pad,
#include "data/feeds.def"
#undef FEED
};

const FeedInfo *feed_info(Feed feed)
{
    return &infos[feed];
}

int64_t feeds_numel(int64_t cells, const OwnInput *own, int num_own)
{
    int64_t count = 0;
    for (int i = 0; i < num_own; i++) count += own[i].size;
    for (int i = 0; i < FEED_COUNT; i++) count += infos[i].shape == FEED_CELLS;
    return count * cells;
}

void feeds_init(Feeds *feeds, int32_t *memory, int64_t cells, const OwnInput *own, int num_own)
{
    *feeds = (Feeds){.array = {0}};
    for (int i = 0; i < FEED_COUNT + num_own; i++) {
        if (i < FEED_COUNT && infos[i].shape != FEED_CELLS) continue;
        feeds->array[i] = memory;
        memory += i < FEED_COUNT ? cells : cells * own[i - FEED_COUNT].size;
    }
}

void feeds_pad(Feeds *feeds, int64_t row, int64_t seq, int64_t from, int32_t token)
{
    for (int i = 0; i < FEED_COUNT; i++) {
        int32_t *cells = feeds->array[i];
        if (infos[i].shape != FEED_CELLS || !cells) continue;
        for (int64_t t = from; t < seq; t++) cells[row * seq + t] = paddings[i] == OWN_COLUMN ? (int32_t)t : paddings[i];
    }
    for (int64_t t = from; t < seq && token; t++) feeds->tokens[row * seq + t] = token;
}
