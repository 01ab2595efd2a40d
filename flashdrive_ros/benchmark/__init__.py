"""`flashdrive bench`: stage times of a model beside the released pipeline and the floors."""
