"""Model families that every command supports: MaBERT and the encoders it is compared with."""
