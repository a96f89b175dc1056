/* h_sanitizer.h: H_SANITIZER is 1 when a sanitizer owns malloc. */
#ifndef H_SANITIZER_H
#define H_SANITIZER_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define H_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define H_SANITIZER 1
#endif
#endif
#ifndef H_SANITIZER
#define H_SANITIZER 0
#endif

#endif
