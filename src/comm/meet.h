/* The meeting of processes: rank 0 listens, the others connect, and both ends prove that they know the secret. */
#pragma once

#include "comm/comm.h"
#include "comm/wire.h"

/* Connected sockets. Rank 0 has both channels to every other rank; other ranks have their channels to rank 0, at [0]. */
typedef struct MeetSockets {
    int (*fd)[CHANNEL_COUNT]; /* by rank; -1: none. The caller frees the table and closes the sockets */
} MeetSockets;

NODISCARD Status meet_all(const CommMeeting *meeting, MeetSockets *out);
void             meet_close(MeetSockets *sockets, int world_size);
