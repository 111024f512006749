/* The meeting of processes: rank 0 listens, the others come, both prove that they know the secret. */
#pragma once

#include "comm/comm.h"
#include "comm/wire.h"

/* Connected sockets: rank 0 has both channels of each other rank, the others have those to rank 0 at [0]. */
typedef struct MeetSockets {
    int (*fd)[CHANNEL_COUNT]; /* by rank, -1: none; the caller's to free and close */
} MeetSockets;

NODISCARD Status meet_all(const CommMeeting *meeting, MeetSockets *out);
void             meet_close(MeetSockets *sockets, int world_size);
