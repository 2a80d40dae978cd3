# -*- coding: nonsense -*-
# Python refuses to read a file in an encoding that it does not know.
