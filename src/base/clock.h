/* Time that only runs forward. */
#pragma once

double clock_seconds(void); /* since some moment; unlike the date it is never set */
