"""The smallest operator: one function, called once for every new object."""

import kopf


@kopf.on.create("kopfexamples")
def create_fn(spec, **_):
    print(f"And here we are! Creating: {dict(spec)}")
    return {"message": "hello world"}  # goes to status.create_fn of the object
