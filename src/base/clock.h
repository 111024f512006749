/* A monotonic clock. */
#pragma once

double clock_seconds(void); /* seconds since an arbitrary moment; changes of the system date don't affect it */
