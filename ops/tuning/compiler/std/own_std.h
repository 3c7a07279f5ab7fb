/// Before each of these headers: what hiprtc's own header has in `std`, and of which types, differs by its version. So
/// device code that is compiled by it says `std` of a namespace of this library's. Texts include nothing of hiprtc's.
#pragma once

#ifdef __HIPCC_RTC__
#define std fusedsc_std
#endif
